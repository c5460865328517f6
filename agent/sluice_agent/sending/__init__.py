"""From the spool to a gateway.

In reading order: `uploader`, `transport`, `upload_decisions` (the reaction to a response),
`gateway_choice` and `gateway_addresses`, `foreign_responses`, `parked_inquiry`,
`signing_key`.
"""
