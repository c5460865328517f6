"""LogQL, the language of questions about records.

`expressions.py` has a question as a value. `grammar.py` parses its text, with `lexer.py` for the
words and the languages inside of quoted texts, and `mistakes.py` for what is refused.
`planning.py` makes it a query of records, whose conditions and labels `names.py` and `stages.py`
write as SQL. `vectors.py` computes the series of a metric query. `unknown_labels.py` names the
labels that no record has.
"""
