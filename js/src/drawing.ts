/** Asks who shows the panel to draw Markdown as the page does, where it can. */

export const DRAW = "nb-agents-draw";

export interface Drawing {
  /** Empty for a card, whose formulas are there and to be typeset. */
  readonly markdown: string;
  /** Who wrote it: its workspace has the files that it names. */
  readonly agent: string;
  /** Of a card: its answers, as Markdown. */
  readonly answers?: readonly string[];
}

/** Characters of an answer that is drawn; a longer one is shown as it is written. */
const MAX_DRAWN = 20_000;

/** Ask for an element's text to be drawn; what is there stays where nobody does. */
export function askToDraw(host: HTMLElement, drawing: Drawing): void {
  if (drawing.markdown.length > MAX_DRAWN) return;
  host.dispatchEvent(new CustomEvent<Drawing>(DRAW, { bubbles: true, detail: drawing }));
}
