"""Files of a disk and objects of stores, by paths and URLs alike."""

from typing import TYPE_CHECKING

from tokpack.storage.files import Identity as Identity
from tokpack.storage.files import ListedFile as ListedFile
from tokpack.storage.files import Version as Version
from tokpack.storage.files import exists as exists
from tokpack.storage.files import head as head
from tokpack.storage.files import identity as identity
from tokpack.storage.files import is_file as is_file
from tokpack.storage.files import joined as joined
from tokpack.storage.files import listed_files as listed_files
from tokpack.storage.files import located as located
from tokpack.storage.files import near as near
from tokpack.storage.files import open_file as open_file
from tokpack.storage.files import paths_of as paths_of
from tokpack.storage.files import refuse as refuse
from tokpack.storage.files import small_files as small_files
from tokpack.storage.files import storage_of as storage_of
from tokpack.storage.objects import KeptRanges as KeptRanges
from tokpack.storage.objects import LocalFile as LocalFile
from tokpack.storage.objects import Range as Range
from tokpack.storage.objects import Ranges as Ranges
from tokpack.storage.objects import Reader as Reader
from tokpack.storage.objects import StoredObject as StoredObject
from tokpack.storage.objects import TakenError as TakenError
from tokpack.storage.objects import check_writable as check_writable
from tokpack.storage.objects import compose as compose
from tokpack.storage.objects import hub_repository as hub_repository
from tokpack.storage.objects import is_url as is_url
from tokpack.storage.objects import objects as _objects
from tokpack.storage.objects import open_object as open_object
from tokpack.storage.objects import place_of as place_of
from tokpack.storage.objects import shown as shown
from tokpack.storage.objects import use_in_this_process as use_in_this_process
from tokpack.storage.objects import writes_conditionally as writes_conditionally
from tokpack.storage.outputs import NewObjects as NewObjects
from tokpack.storage.outputs import check_unchanged as check_unchanged
from tokpack.storage.outputs import look as look
from tokpack.storage.outputs import remove as remove
from tokpack.storage.outputs import replace as replace
from tokpack.storage.outputs import versions_of as versions_of
from tokpack.storage.scratch import ScratchFolder as ScratchFolder
from tokpack.storage.scratch import SentNote as SentNote
from tokpack.storage.scratch import remove_left as remove_left
from tokpack.storage.scratch import scratch_path as scratch_path

if TYPE_CHECKING:
    from tokpack.storage.files import PathLike as PathLike

amounts = _objects.amounts
check_root = _objects.check_root
check_same = _objects.check_same
copies = _objects.copies
find = _objects.find
heads = _objects.heads
named = _objects.named
stat = _objects.stat
stats = _objects.stats
