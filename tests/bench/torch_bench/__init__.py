"""Parts of tests/bench/torch.py.

model, peers, ours and worker run in the trainers' processes and import torch; the others run in
the one that measures, which does not: beside it stands a file of torch's name.
"""
