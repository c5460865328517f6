"""LogQL, the language of questions about records.

`expressions.py` has a question as a value; `grammar.py` parses the text of one.
"""
