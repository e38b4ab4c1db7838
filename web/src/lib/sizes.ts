/** Sizes as people type them. */

const FACTORS: Record<string, number> = {
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
};

export const SIZE_UNITS = Object.keys(FACTORS);

/** Bytes of `number` and `unit`; nothing if it is no size that a volume can have. */
export function bytesOf(number: string, unit: string): number | null {
  const value = Number(number.trim().replace(",", "."));
  const factor = FACTORS[unit];
  if (!factor || !Number.isFinite(value) || value <= 0) return null;
  // Volumes are whole blocks of 4096 bytes, so that either block size will do.
  const bytes = Math.round((value * factor) / 4096) * 4096;
  return bytes > 0 && Number.isSafeInteger(bytes) ? bytes : null;
}

/** The largest unit in which bytes are a short number, for a field of a form. */
export function inUnits(bytes: number): { number: string; unit: string } {
  for (const unit of [...SIZE_UNITS].reverse()) {
    const value = bytes / FACTORS[unit];
    if (value >= 1 && Number.isInteger(value * 100)) return { number: String(value), unit };
  }
  return { number: String(bytes / FACTORS.MiB), unit: "MiB" };
}
