"""One folder per operator of Kimi K3; each `reference.py` is what the kernels of that operator must equal.

Operators never import each other: what two of them share lives in `common`.
"""
