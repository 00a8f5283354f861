"""Merkle trees over entries: roots, inclusion proofs, the chain of seals. Pure."""
