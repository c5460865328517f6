"""How a command line is read and run: `commands`, then `dispatch`, then `application`."""
