"""What the agent reads on its machine.

In reading order: `files` (following and rotation), `line_readers` (whole lines), `file_identity`
(what was read), `columns` and `timestamps` (text to columns), `host_metrics`, `file_names`,
`file_report`.
"""
