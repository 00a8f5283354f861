"""How reports look: HTML, PDF and their plots."""
