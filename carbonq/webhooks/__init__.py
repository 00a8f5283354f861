"""Outgoing webhooks: which addresses they may go to, how one is sent, and when again."""
