"""HTTP parts of the doors that gateway and agent share: paths, requests and responses."""
