"""Images as Pillow writes and reads them. Started by image_samples_test.cpp.

image_peer.py DIRECTORY    writes images, and for each form of them the pixels that Pillow decodes, as a file; prints a
                           line for each of these: the image, the form, the pixels' file, and by how much a value may differ;
                           separated by tabs
Exit status 77: Pillow is not installed.
"""
import os
import struct
import sys
import zlib

try:
    from PIL import Image
except ImportError as missing:
    print(missing)
    sys.exit(77)

directory = sys.argv[1]
WIDTH, HEIGHT = 61, 43
pixels = bytes(value % 256 for y in range(HEIGHT) for x in range(WIDTH)
               for value in (x * 4, y * 5, 128 + (x * x + y * y) // 50))
colors = Image.frombytes("RGB", (WIDTH, HEIGHT), pixels)
gray = colors.convert("L")
alpha = Image.frombytes("L", (WIDTH, HEIGHT), bytes(i % 256 for i in range(WIDTH * HEIGHT)))


def path(name):
    return os.path.join(directory, name)


def png(name, depth, color, rows, interlaced=0):
    """Writes what Pillow cannot write."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color, 0, 0, interlaced)
    with open(path(name), "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def show(name, form, image, within=1):
    raw = f"{name}.{form.replace(':', '-')}.raw"
    with open(path(raw), "wb") as file:
        file.write(image.tobytes())
    print(name, form, raw, within, sep="\t")


def middle(image, height, width):
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
    box = (left, top, left + width * scale, top + height * scale)
    return image.resize((width, height), Image.BILINEAR, box)


colors.save(path("plain.jpg"), quality=90)
colors.save(path("full.jpg"), quality=95, subsampling=0)
colors.save(path("progressive.jpg"), quality=80, progressive=True)
gray.save(path("gray.jpg"))
colors.convert("CMYK").save(path("cmyk.jpg"), quality=95)
for name in ("plain.jpg", "full.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg"):
    image = Image.open(path(name))
    show(name, "rgb", image.convert("RGB"))
    if name != "cmyk.jpg":
        image = Image.open(path(name))
        image.draft("L", image.size)
        show(name, "gray", image.convert("L"))
    # More than 7/8 of the size, so that the whole JPEG is decoded.
    show(name, "rgb:40x57", middle(Image.open(path(name)).convert("RGB"), 40, 57), 2)
    # A part of the size is decoded, by another filter.
    show(name, "rgb:16x20", middle(Image.open(path(name)).convert("RGB"), 16, 20), 24)

colors.save(path("plain.png"))
gray.save(path("gray.png"))
Image.merge("RGBA", (*colors.split(), alpha)).save(path("opacity.png"))
Image.merge("LA", (gray, alpha)).save(path("gray_opacity.png"))
colors.quantize(17).save(path("palette.png"), transparency=3)
gray.convert("1").save(path("bits.png"))
for name in ("plain.png", "gray.png", "opacity.png", "gray_opacity.png", "palette.png", "bits.png"):
    image = Image.open(path(name)).convert("RGBA")  # then without the opacity
    show(name, "rgb", image.convert("RGB"), 0)
    show(name, "gray", image.convert("RGB").convert("L"), 0)
    show(name, "rgb:16x20", middle(image.convert("RGB"), 16, 20))
    show(name, "rgb:100x90", middle(image.convert("RGB"), 100, 90))
    show(name, "gray:28", middle(image.convert("RGB").convert("L"), 28, 28))

wide = bytes(part for value in pixels for part in (value, 255 - value))
png("deep.png", 16, 2, b"".join(b"\0" + wide[y * WIDTH * 6:(y + 1) * WIDTH * 6] for y in range(HEIGHT)))
show("deep.png", "rgb", colors, 0)
passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
rows = b""
for left, top, across, down in passes:
    for y in range(top, HEIGHT, down):
        rows += b"\0" + b"".join(pixels[3 * (y * WIDTH + x):][:3] for x in range(left, WIDTH, across))
png("interlaced.png", 8, 2, rows, 1)
show("interlaced.png", "rgb", colors, 0)
