"""Objects on stores: s3, gs, az and https through obstore, everything else through fsspec."""

from tokpack.storage.objects.access import KeptRanges as KeptRanges
from tokpack.storage.objects.access import Ranges as Ranges
from tokpack.storage.objects.access import Reader as Reader
from tokpack.storage.objects.access import objects as objects
from tokpack.storage.objects.access import open_object as open_object
from tokpack.storage.objects.access import use_in_this_process as use_in_this_process
from tokpack.storage.objects.upload import TakenError as TakenError
from tokpack.storage.objects.upload import abort as abort
from tokpack.storage.objects.upload import check_writable as check_writable
from tokpack.storage.objects.upload import compose as compose
from tokpack.storage.objects.upload import writes_conditionally as writes_conditionally
from tokpack.storage.objects.urls import LocalFile as LocalFile
from tokpack.storage.objects.urls import Range as Range
from tokpack.storage.objects.urls import StoredObject as StoredObject
from tokpack.storage.objects.urls import hub_repository as hub_repository
from tokpack.storage.objects.urls import is_url as is_url
from tokpack.storage.objects.urls import object_of as object_of
from tokpack.storage.objects.urls import place_of as place_of
from tokpack.storage.objects.urls import shown as shown
