"""Pictures of the path of a batch and of the state machines: `python -m deploy.pictures`.

Each picture lists the steps that it draws. `explore` of a picture runs the code that decides, and
`differences` compares both, so that a picture with a wrong or a missing step is not written.
"""
