"""The description of a training run, before anything is opened: flags, files, model, schedule. No
torch.
"""
