"""One machine at one moment: what NVML, CUDA and the host around them told, in one typed record.

``record``  the record, and its one reader: reports of every version that k3ctl wrote
``read``    reads this machine
"""
