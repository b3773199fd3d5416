/** Requests that the host of a panel renders Markdown like the page does. */

export const DRAW = "nb-agents-draw";

export interface Drawing {
  /** Empty for a card, in which only formulas are rendered. */
  readonly markdown: string;
  /** The author, whose workspace contains the files named in the text. */
  readonly agent: string;
  /** For a card: its answers as Markdown. */
  readonly answers?: readonly string[];
}

/** Limit of a rendered answer, in characters. Longer ones are shown as plain text. */
const MAX_DRAWN = 20_000;

/** Request that an element's text is rendered. Without a listener, it stays unchanged. */
export function askToDraw(host: HTMLElement, drawing: Drawing): void {
  if (drawing.markdown.length > MAX_DRAWN) return;
  host.dispatchEvent(new CustomEvent<Drawing>(DRAW, { bubbles: true, detail: drawing }));
}
