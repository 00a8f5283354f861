"""What requests and answers look like: described, shown as examples and held to by the tests."""
