"""What trains: zerod and its peers, each in processes of its own.

model, peers, ours and worker run in the trainers' processes and import torch; the others run in the one that measures.
"""
