"""Every error that the library raises on purpose.

DeblurError
├── ImageError               the picture cannot be used
│   ├── CorruptImage         it starts like a picture and cannot be decoded
│   ├── UnsupportedImage     not a picture, or of a kind that is not read here
│   └── ImageTooLarge        over a limit on bytes, pixels or frames; found before decoding
├── WeightsError             a weights file is absent, damaged or of another kind
├── DeviceError              the device asked for is not there
│   └── OutOfMemory          the device ran out of memory even on a smaller batch
├── OptionError              an option or argument has a value that is not allowed
├── OutputError              the result cannot be written
└── DataError                a data set is absent, damaged or not laid out as expected

Messages say what was expected, what came and what to do. Anything else that escapes is a bug.
"""


class DeblurError(Exception):
    """Root of all errors raised on purpose."""


class ImageError(DeblurError):
    """The picture cannot be used."""


class CorruptImage(ImageError):
    """The bytes start like a picture and cannot be decoded."""


class UnsupportedImage(ImageError):
    """The bytes are no picture, or of a kind that is not read here."""


class ImageTooLarge(ImageError):
    """The picture is over a limit on bytes, pixels or frames; found before decoding."""


class WeightsError(DeblurError):
    """A weights file is absent, damaged or of another kind."""


class DeviceError(DeblurError):
    """The device asked for is not there."""


class OutOfMemory(DeviceError):
    """The device ran out of memory even on a smaller batch."""


class OptionError(DeblurError, ValueError):
    """An option or argument has a value that is not allowed."""


class OutputError(DeblurError):
    """The result cannot be written."""


class DataError(DeblurError):
    """A data set is absent, damaged or not laid out as expected."""
