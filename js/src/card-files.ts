/** Links to the files named on a card, and the card's images, for the answers rendered by JupyterLab. */

import { FILE, type Files, type TurnFile, pathOf } from "./sanitize";
import { trans } from "./text";

/** Finds a file of an agent's workspace. */
type FileOf = (agent: string, path: string) => TurnFile | undefined;

/**
 * Turn the file names on a card into links, and its path into a link to all files.
 *
 * @param browses Whether the front end can show all files of a turn.
 * @returns A function that returns the files which an answer on this card may show and link to.
 */
export function filesOn(card: HTMLElement, fileOf: FileOf, browses: boolean): (answer: HTMLElement) => Files {
  const known = new Set<string>();
  for (const name of card.querySelectorAll<HTMLElement>(".nb-file")) {
    const [agent, path] = [name.title, name.textContent ?? ""];
    const file = fileOf(agent, path);
    if (!file) continue;
    known.add(`${agent} ${path}`);
    link(name, file);
  }
  const paths = browses ? card.querySelectorAll<HTMLElement>(".nb-path") : [];
  for (const path of paths) link(path, { path: "", address: "#" });
  return (answer) => {
    const agent = answer.title;
    answer.removeAttribute("title");
    // Images are embedded in the card, so they cause no request.
    const images = new Map([...answer.querySelectorAll("img")].map((image) => [pathOf(image.title), image.src]));
    return {
      image: (path) => images.get(path) ?? "",
      file: (path) => (known.has(`${agent} ${path}`) ? fileOf(agent, path) : undefined),
    };
  };
}

function link(name: HTMLElement, { path, address }: TurnFile): void {
  const made = document.createElement("a");
  made.href = address;
  made.title = path ? trans.__("Open this file.") : trans.__("Show the files of this turn.");
  made.setAttribute(FILE, path);
  name.replaceWith(made);
  made.append(name);
  name.removeAttribute("title");
}
