"""Correctness evidence on the path that really ran.

``record``      what a check is, and what its outcome is
``session``     the one way to the server; counts what it sent and got
``interval``    what the witness says of a check's interval: a pass rests on it
``divergence``  two generations side by side, with the margin where they part
``statistics``  chi-square by simulation, intervals of shares
``checks``      the checks, by group
``tiers``       which checks a tier has
``runner``      runs them in order; ``state`` keeps each result at once
"""
