import { expect, test } from "vitest";
import { FILE, type Files, prepare, sanitize, withoutMath } from "../src/sanitize";

const NONE: Files = { image: () => "", file: () => undefined };
const FILES: Files = {
  image: (path) => (path === "plot.png" ? "data:image/png;base64,AAAA" : ""),
  file: (path) => (path === "data.csv" ? { path: `workspaces/ada/${path}`, address: `/files/${path}` } : undefined),
};

test.each([
  ["costs $5 here and $7 there", "costs \\$5 here and \\$7 there"],
  ["so $x$ holds", "so $x$ holds"],
  ["so $a &lt; b$ holds", "so $a < b$ holds"],
  ["\\(x\\) and \\[y\\]", "\\\\(x\\\\) and \\\\[y\\\\]"],
  ["a <b> c", "a &lt;b> c"],
  ["`$x <b>` and\n\n```\n\\(x\\) <b>\n```\n", "`$x <b>` and\n\n```\n\\(x\\) <b>\n```\n"],
  ["!\\[a plot](plot.png)", "![a plot](plot.png)"],
])("Markdown is escaped for JupyterLab's renderer: %s", (before, after) => {
  expect(prepare(before)).toBe(after);
});

test.each([
  ["flowchart LR\n A-->B\n style A fill:#f9f,stroke:#333", true],
  ["classDiagram\n class A { <<interface>> }\n A <|-- B", true],
  ["flowchart LR\n A[one<br/>two] --> B", true],
  ["flowchart LR\n A-->B\n style A fill:url(http://e)", false],
  ['flowchart LR\n A@{ img: "x" }', false],
  ["%%{init: {}}%%\nflowchart LR\n A-->B", false],
  ["---\nconfig: x\n---\nflowchart LR", false],
  ['flowchart LR\n A["#60;img#62;"]', false],
])("a diagram is drawn unless it may contain a URL: %s", (diagram, isDrawn) => {
  expect(prepare(`\`\`\`mermaid\n${diagram}\n\`\`\`\n`).startsWith("```mermaid")).toBe(isDrawn);
});

test("nothing that causes requests or actions is left", () => {
  const html = sanitize(
    '<p style="background:url(http://e)" onclick="x()" id="a">a</p><img src="http://e"><style>@import "http://e"</style>' +
      '<button data-commandlinker-command="x">b</button><a href="javascript:x()">c</a><input type="image" src="http://e">',
    NONE,
  );
  expect(html).not.toMatch(/style=|onclick|<img|<style|data-command|javascript|src=| id=/);
  expect(html).toContain("![](http://e)");
});

test("only images and files of the workspace are shown", () => {
  const html = sanitize(
    '<img src="plot.png" alt="a"><img src="../b.png" alt="b"><a href="data.csv">d</a> <code>data.csv</code><a href="x.csv">x</a>',
    FILES,
  );
  const { body } = new DOMParser().parseFromString(html, "text/html");
  expect(body.querySelectorAll("img")).toHaveLength(1);
  expect(body.querySelectorAll(`a[${FILE}="workspaces/ada/data.csv"]`)).toHaveLength(2);
  expect(body.querySelectorAll("a[href]")).toHaveLength(2);
});

test("images within the text are shown, except those that could contain a request", () => {
  const kinds = ["png", "jpeg", "gif", "webp", "svg+xml"];
  const html = sanitize(kinds.map((kind) => `<img src="data:image/${kind};base64,AAAA">`).join(""), NONE);
  expect(html.match(/<img/g)).toHaveLength(4);
  expect(html).toContain("![](data:image/svg+xml;base64,AAAA)");
});

test("MathJax finds no formula that writes styles, and no others than the parser", () => {
  expect(sanitize("<p>$\\style{a}{b}$ $\\frac12$</p>", NONE)).toBe("<p>$<span>\\</span>style{a}{b}$ $\\frac12$</p>");
  expect(withoutMath("<p>$5 and $7 @@0@@</p>")).toBe("<p><span>$</span>5 and <span>$</span>7 @@0@@</p>");
});
