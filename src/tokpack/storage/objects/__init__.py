"""Objects on stores: s3, gs, az and https through obstore, everything else through fsspec."""
