"""One upload, from its head to its response.

In reading order: `api`, `service` (the steps), `admission`, `principals` (who sent it),
`frame_reader`, `upload` (what was validated, and the responses), `acceptor`, `lists`
(several uploads in one request).
"""
