"""Vector stores behind one contract. They know `contracts.py` and nothing else of ours."""
