"""Identity, keys, frame codec, manifests, errors and every decision, as pure functions."""
