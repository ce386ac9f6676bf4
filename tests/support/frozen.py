"""Imported last by a process that others are forked from: what it has loaded is garbage of none.

A collection in a fork would go through all of it, and copy the pages that it lies in.
"""

import gc

gc.collect()
gc.freeze()
