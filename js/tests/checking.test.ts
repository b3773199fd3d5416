import { expect, test, vi } from "vitest";
import type { Finding } from "../src/api";
import { diagnosticOf, isOurs } from "../src/checking";

vi.mock("@codemirror/lint", () => ({}));
vi.mock("@codemirror/view", () => ({}));
vi.mock("@jupyterlab/services", () => ({}));

test.each([
  ["agents:\n  - id: a\n", true],
  ["agent:\n  backend:\n    type: demo\n", true],
  ["name: x\ndescription: d\nstages:\n  - name: s\n", true],
  ["stages: [build, test]\nbuild:\n  script: make\n", false],
  ["name: x\nsteps:\n  - script: make\n", false],
  ["agents: 3\n", false],
  ["  agents:\n    - id: a\n", false],
  [`agents:\n  - id: a\n${"#".repeat(60_000)}`, false],
])("%j is a team file or recipe: %s", (text, is) => {
  expect(isOurs(text)).toBe(is);
});

test.each([
  ["      temprature: 1", 7, "temprature"],
  ["  - id: '𝒳 a' # x", 9, "'𝒳 a'"],
  ["𝒳𝒳: [b, c]", 6, "b"],
  ["    oops  ", 9, "oops"],
  ["", 1, ""],
])("a finding in %j at column %i marks %j", (text, column, marked) => {
  const doc = { lines: 1, line: () => ({ from: 10, to: 10 + text.length, number: 1, text, length: text.length }) };
  const finding: Finding = { severity: "error", what: "w", line: 9, column };
  const { from, to } = diagnosticOf(finding, doc);
  expect(text.slice(from - 10, to - 10)).toBe(marked);
});
