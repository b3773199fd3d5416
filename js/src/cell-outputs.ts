/** Outputs of cells as text for models, as in `nb_agents/extensions/notebook_cells/cell_outputs.py`. Pure. */

import type { ISharedCell } from "@jupyter/ydoc";

/** Maximum number of characters of a cell's outputs. */
const MAX_OUTPUT = 4_000;
/** Maximum number of characters of all outputs that answer a request. */
export const MAX_OUTPUTS = 20_000;

// biome-ignore lint/suspicious/noControlCharactersInRegex: terminal codes and control characters are removed
const CONTROL = /\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]/g;

/** An output in a notebook's JSON. Its texts are untrusted. */
interface Output {
  readonly output_type?: string;
  readonly text?: unknown;
  readonly data?: Readonly<Record<string, unknown>>;
  readonly ename?: unknown;
  readonly evalue?: unknown;
  readonly traceback?: unknown;
}

/** Maximum number of images in an answer. */
const MAX_IMAGES = 4;
/** Maximum length of an image as base64. */
const MAX_IMAGE = 350_000;
/** Maximum length of all images of an answer as base64. */
const MAX_IMAGES_SUM = 550_000;

/** An image in an output of a cell. `data` is base64, or "" if the image is left out. */
export interface CellImage {
  readonly cell: string;
  readonly media_type: string;
  readonly data: string;
}

/** Return the images in outputs of cells, as far as they are not too many or too large. */
export function imagesOf(cells: readonly (readonly [id: string, outputs: readonly Output[]])[]): CellImage[] {
  let count = 0;
  let room = MAX_IMAGES_SUM;
  return cells.flatMap(([cell, outputs]) =>
    outputs.flatMap((output) =>
      Object.entries(output.data ?? {})
        .filter(([kind]) => kind.startsWith("image/"))
        .map(([media_type, value]) => {
          const text = joined(value);
          const fits = count < MAX_IMAGES && text.length <= Math.min(room, MAX_IMAGE);
          if (fits) {
            count += 1;
            room -= text.length;
          }
          return { cell, media_type, data: fits ? text : "" };
        }),
    ),
  );
}

/** Return the outputs of a cell. */
export function listOutputs(cell: ISharedCell): readonly Output[] {
  return (cell.toJSON() as { readonly outputs?: readonly Output[] }).outputs ?? [];
}

/** Return the end of a cell's outputs as text. Outputs that are not text are only named. */
export function outputsOf(cell: ISharedCell): string {
  return outputText(listOutputs(cell));
}

export function outputText(outputs: readonly Output[]): string {
  const texts = outputs.map(textOf).filter((text) => text !== "");
  return lastChars(texts.join("\n"), MAX_OUTPUT);
}

/** Return the end of a text, with a note on what was left out. */
export function lastChars(text: string, limit: number): string {
  if (text.length <= limit) return text;
  return `[${text.length - limit} characters left out]\n${text.slice(text.length - limit)}`;
}

function textOf(output: Output): string {
  if (output.output_type === "error") {
    const lines = Array.isArray(output.traceback) ? output.traceback.map(String) : [];
    return plain(lines.length ? lines.join("\n") : `${output.ename}: ${output.evalue}`);
  }
  if (output.output_type === "stream") return plain(joined(output.text));
  const data = output.data ?? {};
  const named = Object.keys(data).filter((kind) => /^(image|video|audio)\//.test(kind));
  return [plain(joined(data["text/plain"])), ...named.map((kind) => `[${kind}]`)].filter((text) => text !== "").join("\n");
}

function joined(value: unknown): string {
  return Array.isArray(value) ? value.map(String).join("") : String(value ?? "");
}

function plain(text: string): string {
  return text.replaceAll("\r\n", "\n").replace(CONTROL, "").trimEnd();
}
