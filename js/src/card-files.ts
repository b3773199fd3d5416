/** The files that a card names, as links, and its images, for the answers that JupyterLab draws on it. */

import { FILE, type Files, type TurnFile, pathOf } from "./harmless";

/** Names a file of an agent's workspace. */
type FileOf = (agent: string, path: string) => TurnFile | undefined;

/**
 * Make links of the files on a card, and of its path, which opens all of them.
 *
 * @param browses Whether the front end can show all files of a turn.
 * @returns The files that an answer on this card may show and link to.
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
    // They are in the card: no server is asked for them.
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
  made.title = path ? "Open this file." : "Show the files of this turn.";
  made.setAttribute(FILE, path);
  name.replaceWith(made);
  made.append(name);
  name.removeAttribute("title");
}
