/**
 * Removes everything from a model's text that could cause a request: raw HTML, images, styles, math that
 * writes styles or links, and diagrams that may contain a URL. This happens before the text is in the
 * document, because an image is fetched as soon as it has a URL.
 */

/** The files that an answer may refer to. */
export interface Files {
  /** Return the URL of a workspace image that may be shown, or "". */
  image(path: string): string;
  /** Return a file of the workspace, or undefined. */
  file(path: string): TurnFile | undefined;
}

export interface TurnFile {
  /** Relative to the turn's directory. */
  readonly path: string;
  /** URL at the server. */
  readonly address: string;
}

/** Attribute of a link to a file of a turn, with the file's path. */
export const FILE = "data-nba-file";

/** Matches code like JupyterLab does when it searches math: fences, spans and indented lines. */
const CODE = /(^(`{3,}|~{3,})[^`\n]*\n[\s\S]*?(?:^\2[`~]*[ \t]*$|$(?![\s\S])))|((`+)(?!`)[^\n]*?[^`\n]\4(?!`))|(^(?: {4}|\t).*$)/gm;

/** Matches math and escapes, and also prices and tags, which are not math. Same rules as Python's cards. */
const TEXT = new RegExp(
  [
    String.raw`(?<math>\$\$[\s\S]+?\$\$|(?<![\d\\$])\$(?![\s$])(?:\\[\s\S]|(?!\n\s*\n)[^$\\])+?(?<![\s\\])\$(?!\d)|\\begin\{(?<env>[a-z]+\*?)\}[\s\S]*?\\end\{\k<env>\})`,
    String.raw`(?<double>\\\\[([][\s\S]*?\\\\[)\]])`,
    String.raw`\\(?<open>[([])(?<inside>(?:(?!\n\s*\n)[\s\S])*?)\\(?<close>[)\]])`,
    String.raw`!\\?\[(?<about>[^\]\n]*)\]\((?<address>[^()\s]+)\)`,
    String.raw`(?<escape>\\[\s\S])`,
    String.raw`(?<dollar>\$)`,
    String.raw`(?<less><)`,
  ].join("|"),
  "g",
);

/** Escape Markdown so that JupyterLab's renderer finds its math but no HTML. */
export function prepare(markdown: string): string {
  let made = "";
  let done = 0;
  for (const found of markdown.matchAll(CODE)) {
    made += prepareText(markdown.slice(done, found.index)) + withoutAddresses(found[0]);
    done = found.index + found[0].length;
  }
  return made + prepareText(markdown.slice(done));
}

function prepareText(text: string): string {
  return text.replace(TEXT, (...found) => {
    const all = found[0] as string;
    const groups = found.at(-1) as Partial<Record<string, string>>;
    // Python has escaped a "<" in math, too.
    if (groups.math ?? groups.double) return all.replaceAll("&lt;", "<");
    if (groups.open) {
      const isPair = groups.close === (groups.open === "(" ? ")" : "]");
      const inside = (groups.inside ?? "").replaceAll("&lt;", "<");
      return isPair ? `\\\\${groups.open}${inside}\\\\${groups.close}` : all;
    }
    if (groups.address) return `![${groups.about}](${groups.address})`;
    if (groups.dollar) return "\\$";
    return groups.less ? "&lt;" : all;
  });
}

const DIAGRAM = /^(`{3,}|~{3,})[ \t]*mermaid\b/;
/** Matches anything that could be a URL in a diagram, its styles or its settings. */
const MAY_NAME_ADDRESS = new RegExp(
  [
    String.raw`\/\/|:\s*\/|\\|%%\{|@\{|@import|@font`,
    String.raw`\b(?:https?|ftp|wss?|data|javascript|blob)\s*:|\b(?:url|src|image|image-set)\s*\(|\b(?:src|href)\s*=`,
    // Entities, except in colours.
    String.raw`#(?:\d+|(?![\da-f]{3,8};)\w+);|&#?\w+;`,
    String.raw`<(?!br\s*\/?>|\w+>>)\s*[a-z\/!?]|\bsprite\b|^\s*(?:---\s*$|click\b)`,
  ].join("|"),
  "im",
);

/** Keep a diagram that may contain a URL as code, because diagrams are rendered in the page. */
function withoutAddresses(code: string): string {
  return DIAGRAM.test(code) && MAY_NAME_ADDRESS.test(code) ? code.replace(/mermaid/, "text") : code;
}

const TAGS = new Set(
  ("A B BLOCKQUOTE BR CODE DEL DETAILS DIV EM FIGCAPTION FIGURE H1 H2 H3 H4 H5 H6 HR I IMG INPUT LI OL P PRE S SPAN " +
    "STRONG SUB SUMMARY SUP TABLE TBODY TD TH THEAD TR UL")
    .split(" "),
);
const KEPT: Readonly<Record<string, RegExp>> = {
  align: /^(?:left|right|center)$/,
  alt: /^/,
  checked: /^/,
  disabled: /^/,
  dir: /^auto$/,
  start: /^\d{1,9}$/,
  title: /^/,
  width: /^\d{1,5}(?:\.\d{1,6})?$/,
};
/** Classes of the editor's colours, of diagrams and of code. */
const CLASS = /^(?:language-[\w+#.-]+|cm-[\w-]+|ͼ\w+|tok-[\w-]+|jp-RenderedMermaid|jp-mod-warning)$/;
const ABSOLUTE = /^(?:https?:\/\/|mailto:)/i;
/** Images within the text, which cause no request. The same kinds as in `workspace_images.py`. */
const DATA_IMAGE = /^data:image\/(?:png|jpeg|gif|webp);base64,[\w+/=]{1,400000}$/i;
const DIAGRAM_IMAGE = /^data:image\/svg\+xml,/;

/** The same list as in `stylesheet.py`. */
const NO_MATH =
  /\\(?=(?:href|url|style|class|cssId|data|require|includegraphics|csname|mmlToken|bbox|def|edef|gdef|xdef|let|(?:re)?newcommand|providecommand|(?:re)?newenvironment|setOptions|Newextarrow|enclose|unicode)(?![A-Za-z]))/;
/** Matches starts of formulas in the parser's output, from which math was removed. */
const MATH_STARTS = /\$|\\(?=[([]|begin\b)/;

/** Hide the parser's output, from which math was removed, from the page's MathJax. */
export function withoutMath(html: string): string {
  const body = parse(html);
  shield(body, MATH_STARTS);
  return body.innerHTML;
}

/** Return HTML with only the elements and attributes of Markdown. */
export function sanitize(html: string, files: Files): string {
  const body = parse(html);
  // Outermost first, because replacements of elements are cleaned, too.
  for (let left = [...body.children]; left.length; ) {
    const element = left.shift() as Element;
    left.unshift(...clean(element, files));
  }
  shield(body, NO_MATH);
  return body.innerHTML;
}

/** Parse HTML in a separate document, which loads nothing. */
function parse(html: string): HTMLElement {
  return new DOMParser().parseFromString(`<!doctype html><body>${html}`, "text/html").body;
}

/** Clean one element, and return the nodes to clean next. */
function clean(element: Element, files: Files): Element[] {
  const { tagName } = element;
  if (!TAGS.has(tagName) || element.namespaceURI !== "http://www.w3.org/1999/xhtml") {
    const text = document.createTextNode(element.textContent ?? "");
    element.replaceWith(text);
    return [];
  }
  if (tagName === "IMG" && !cleanImage(element, files)) return [];
  const href = tagName === "A" ? (element.getAttribute("href") ?? "") : "";
  for (const { name, value } of [...element.attributes]) {
    if (name === "src" && tagName === "IMG") continue;
    const classes = name === "class" ? value.split(/\s+/).filter((each) => CLASS.test(each)) : [];
    if (classes.length) element.setAttribute(name, classes.join(" "));
    else if (!KEPT[name]?.test(value)) element.removeAttribute(name);
  }
  if (tagName === "INPUT") element.setAttribute("type", "checkbox");
  if (href) setLink(element, href, files);
  if (tagName === "CODE" && !element.closest("pre, a")) linkName(element, files);
  return [...element.children];
}

/** Keep images of the workspace and within the text, and diagrams. Replace other images by their source as text. */
function cleanImage(image: Element, files: Files): boolean {
  const src = image.getAttribute("src") ?? "";
  const isDiagram = DIAGRAM_IMAGE.test(src) && image.closest(".jp-RenderedMermaid") !== null;
  const address = isDiagram || DATA_IMAGE.test(src) ? src : files.image(pathOf(src));
  image.removeAttribute("src");
  if (address) image.setAttribute("src", address);
  else image.replaceWith(document.createTextNode(`![${image.getAttribute("alt") ?? ""}](${src})`));
  return address !== "";
}

function setLink(link: Element, href: string, files: Files): void {
  if (ABSOLUTE.test(href)) {
    link.setAttribute("href", href);
    link.setAttribute("rel", "noopener noreferrer nofollow");
    link.setAttribute("target", "_blank");
    return;
  }
  const file = href.includes(":") || href.startsWith("#") ? undefined : files.file(pathOf(href));
  if (!file) return;
  link.setAttribute("href", file.address);
  link.setAttribute(FILE, file.path);
}

/** Turn code that names a file into a link. */
function linkName(code: Element, files: Files): void {
  const file = files.file(code.textContent ?? "");
  if (!file || code.childElementCount) return;
  const link = document.createElement("a");
  link.setAttribute("href", file.address);
  link.setAttribute(FILE, file.path);
  code.replaceWith(link);
  link.append(code);
}

/** Return the path of a file named in Markdown, relative to its workspace. */
export function pathOf(address: string): string {
  let path = address;
  try {
    path = decodeURIComponent(address);
  } catch {
    // Not URL-encoded: the name of a file with a percent sign.
  }
  return path.replace(/^(?:\.\/)+/, "");
}

/** Put characters into separate elements, because MathJax finds formulas only within one text node. */
function shield(body: Node, what: RegExp): void {
  const texts: Text[] = [];
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(walker.currentNode as Text);
  for (let text of texts) {
    if (text.parentElement?.closest("code, pre")) continue;
    for (let found = what.exec(text.data); found; found = what.exec(text.data)) {
      const mark = text.splitText(found.index);
      text = mark.splitText(1);
      const span = document.createElement("span");
      mark.replaceWith(span);
      span.append(mark);
    }
  }
}
