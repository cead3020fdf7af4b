"""The one decoder and encoder: any picture file to integer RGB levels and back.

A `Picture` holds what has to survive restoration: the levels as they were stored (8 or 16 bits), the alpha
channel, whether it was grey, and the metadata. Levels stay integers, so that whatever is not restored comes
back byte for byte.

Colour: an RGB or grey ICC profile is kept and the levels stay in its space (nothing is lost, the untouched
part stays equal). CMYK and Lab have no levels that a generator of RGB could use: they are converted to sRGB
through their profile. A profile is also converted away when the output format cannot carry it.

Depth: 16-bit PNG, TIFF and PPM are read and written with 16 bits. JPEG, WebP, AVIF, GIF and BMP have 8.

Importing this package does not import torch.
"""

from deblur.images.decoding import Header, decode, probe, read_file
from deblur.images.encoding import encode, like, output_format
from deblur.images.picture import Limits, Picture, to_levels, to_tensor

__all__ = [
    "Header",
    "Limits",
    "Picture",
    "decode",
    "encode",
    "like",
    "output_format",
    "probe",
    "read_file",
    "to_levels",
    "to_tensor",
]
