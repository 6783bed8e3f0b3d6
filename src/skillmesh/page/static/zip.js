// Writes a zip without compression, so that a folder with train, val and test keeps its splits on the way to the agent.

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value >>> 0;
});

function checksum(data) {
  let value = 0xffffffff;
  for (const byte of data) value = TABLE[(value ^ byte) & 255] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

/* Writes numbers of 2 or 4 bytes, little-endian. */
function numbers(pairs) {
  const view = new DataView(new ArrayBuffer(pairs.reduce((sum, [, size]) => sum + size, 0)));
  let place = 0;
  for (const [value, size] of pairs) {
    if (size === 2) view.setUint16(place, value, true);
    else view.setUint32(place, value, true);
    place += size;
  }
  return view.buffer;
}

/* `items` are {path, file}. Flag 0x0800 says that names are UTF-8. */
export async function zip(items) {
  const parts = [];
  const directory = [];
  let offset = 0;
  let directorySize = 0;
  for (const { path, file } of items) {
    const name = new TextEncoder().encode(path);
    const sum = checksum(new Uint8Array(await file.arrayBuffer()));
    const shared = [[20, 2], [0x0800, 2], [0, 2], [0, 2], [0x21, 2], [sum, 4], [file.size, 4], [file.size, 4], [name.length, 2], [0, 2]];
    parts.push(numbers([[0x04034b50, 4], ...shared]), name, file);
    directory.push(numbers([[0x02014b50, 4], [20, 2], ...shared, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]]), name);
    offset += 30 + name.length + file.size;
    directorySize += 46 + name.length;
  }
  const end = numbers([[0x06054b50, 4], [0, 2], [0, 2], [items.length, 2], [items.length, 2], [directorySize, 4], [offset, 4], [0, 2]]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}
