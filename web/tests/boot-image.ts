/** The smallest system that can tell that it was booted from a disk, and that the disk takes what it writes. */

/** A disk of 1 MiB. */
export const IMAGE_BYTES = 1 << 20;
const SECTOR = 512;
/** Where the text is that it prints: the disk's last sector. */
export const TEXT_LBA = IMAGE_BYTES / SECTOR - 1;
/** Where it writes that sector again. */
export const COPY_LBA = 4;

/** Where the BIOS puts the boot sector, and where that has the text read to. */
const ORIGIN = 0x7c00;
const BUFFER = 0x7e00;

const word = (value: number): number[] => [value & 0xff, value >> 8];

/** 16-bit code: reads the text, writes it elsewhere, prints it on the first serial port, and halts. */
function bootCode(): number[] {
  const serial = [
    0x52, // push dx: the drive
    ...[0xba, ...word(0x3fb), 0xb0, 0x83, 0xee], // divisor, 8N1
    ...[0xba, ...word(0x3f8), 0xb0, 0x01, 0xee], // 115200 baud
    ...[0x42, 0xb0, 0x00, 0xee],
    ...[0xba, ...word(0x3fb), 0xb0, 0x03, 0xee],
    0x5a, // pop dx
  ];
  const begin = [
    0xfa, // cli
    ...[0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0], // ds = es = ss = 0
    ...[0xbc, ...word(ORIGIN), 0xfb, 0xfc], // sp; sti; cld
  ];
  const print = [
    0xac, // lodsb
    ...[0x84, 0xc0, 0x74, 18], // 0: the end
    ...[0x88, 0xc3, 0xba, ...word(0x3fd)],
    ...[0xec, 0xa8, 0x20, 0x74, 0xfb], // until the port is ready
    ...[0xba, ...word(0x3f8), 0x88, 0xd8, 0xee],
    ...[0xeb, 0x100 - 23],
  ];
  const halt = [0xf4, 0xeb, 0xfd];
  // The address packet of the BIOS's extended reads and writes follows the code.
  const assemble = (packet: number): number[] => [
    ...begin,
    ...serial,
    ...[0xbe, ...word(packet), 0xb4, 0x42, 0xcd, 0x13], // int 13h: read
    ...[0x72, 16 + 3 + print.length],
    ...[0xc7, 0x06, ...word(packet + 8), ...word(COPY_LBA)],
    ...[0xbe, ...word(packet), 0xb8, ...word(0x4300), 0xcd, 0x13], // int 13h: write
    ...[0x72, 3 + print.length],
    ...[0xbe, ...word(BUFFER)],
    ...print,
    ...halt,
  ];
  const length = assemble(0).length;
  return [...assemble(ORIGIN + length), ...[0x10, 0, 1, 0], ...word(BUFFER), 0, 0, ...word(TEXT_LBA), 0, 0, 0, 0, 0, 0];
}

/** The image of a disk that prints the text when it is booted. */
export function bootImage(text: string): Buffer {
  const image = Buffer.alloc(IMAGE_BYTES);
  Buffer.from(bootCode()).copy(image);
  image.writeUInt16LE(0xaa55, SECTOR - 2);
  image.write(`${text}\r\n`, TEXT_LBA * SECTOR, "latin1");
  return image;
}
