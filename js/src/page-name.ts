/** The name of this page, with which it claims work that one page must do. A reload keeps it. */

const STORED = "nb-agents-page";

let name = "";

/** Return the name of this page. A duplicated browser tab gets its own. */
export function pageName(): string {
  if (name) return name;
  name = sessionStorage.getItem(STORED) ?? Math.random().toString(36).slice(2);
  // A duplicated tab copies what is stored, so the name is stored only while no page has it.
  sessionStorage.removeItem(STORED);
  addEventListener("pagehide", () => sessionStorage.setItem(STORED, name));
  addEventListener("pageshow", () => sessionStorage.removeItem(STORED));
  return name;
}
