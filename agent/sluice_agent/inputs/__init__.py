"""What the agent reads on its machine.

In reading order: `files` (following and rotation), `line_readers` (whole lines), `formats` and
`structured` (what programs write), `containers` (what runtimes write around it), `grouping` (which
lines are one record), `file_identity` (what was read), `columns` and `timestamps` (text to
columns), `journal` (of systemd), `host_metrics`, `file_names`, `file_report`.
"""
