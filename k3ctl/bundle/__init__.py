"""Evidence bundles (``k3ctl.bundle/1``): a result directory that anyone can check, compare and read.

``write`` turns a benchmark's result directory into a bundle, ``verify`` checks every byte and recomputes
the summary from the raw files, ``archive`` packs it reproducibly, ``report`` renders it.
"""
