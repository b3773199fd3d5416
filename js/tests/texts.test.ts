// @vitest-environment node
// biome-ignore-all lint/suspicious/noTemplateCurlyInString: sources as strings
/// <reference types="vite/client" />

import { describe, expect, test } from "vitest";
import { findTexts } from "./texts";

/** Texts that are not translated. */
const EXCEPTIONS: readonly { readonly file: string; readonly text: RegExp; readonly why: string }[] = [
  { file: "api.ts", text: /^status /, why: "only in the browser's console" },
  { file: "ask-team.ts", text: /^%%agents|^Explain this error|^ The cells|^Error$/, why: "a task, which agents read" },
  { file: "cell-changes.ts", text: /^These cells/, why: "agents read it" },
  { file: "cell-outputs.ts", text: /characters left out/, why: "agents read it" },
  { file: "cell-runs.ts", text: /^(?:other code|cell \{\})$/, why: "part of a notice in the journal, which is English" },
  { file: "checking.ts", text: /^nb-agents check$/, why: "a command" },
  { file: "claims.ts", text: /^nb-agents /, why: "the name of a lock" },
  { file: "files.ts", text: /^Editor$/, why: "JupyterLab's name of the viewer" },
  { file: "icon.ts", text: /^</, why: "a picture without text" },
  { file: "new-team.ts", text: /^Editor$/, why: "JupyterLab's name of the viewer" },
  { file: "new-team-form.ts", text: /^https:/, why: "an address" },
  { file: "page.ts", text: /^Agent sessions$/, why: "JupyterLab's key for the place of the sidebar" },
  { file: "page.ts", text: /^Notebook$/, why: "JupyterLab's name of the toolbar" },
  { file: "panel.ts", text: /^nb-agents stop/, why: "a command" },
  { file: "plugin.ts", text: /^(?:Shows|Edits) /, why: "for JupyterLab's list of plugins, which knows no language yet" },
  { file: "requests.ts", text: /^requested by/, why: "the reason of a stop in the journal, which is English" },
  { file: "rewind.ts", text: /^the end$/, why: "the server's name of a checkpoint" },
  { file: "sanitize.ts", text: /^<!doctype|^[A-Z0-9 ]+$/, why: "HTML" },
  { file: "send.ts", text: /on the control channel$/, why: "only in the browser's console" },
  { file: "sessions.ts", text: /^%load_ext/, why: "a command" },
  { file: "state.ts", text: /^%agents show/, why: "a command" },
  { file: "token.ts", text: /^Lists, stops/, why: "for developers of other extensions" },
  { file: "watch.ts", text: /^status /, why: "only in the browser's console" },
];

const sources = import.meta.glob<string>("../src/*.ts", { query: "?raw", import: "default", eager: true });

describe("texts in the sources", () => {
  const found = Object.entries(sources)
    .map(([path, text]) => [path.replace("../src/", ""), text] as const)
    .filter(([file]) => file !== "text.ts")
    .flatMap(([file, text]) => findTexts(file, text));
  const isFor = (finding: (typeof found)[number]) => (each: (typeof EXCEPTIONS)[number]) =>
    each.file === finding.file && each.text.test(finding.text) && finding.problem === "not translated";

  test("go through `trans`, which must know the language, except for a few", () => {
    expect(Object.keys(sources).length).toBeGreaterThan(50);
    const wrong = found.filter((finding) => !EXCEPTIONS.some(isFor(finding)));
    expect(wrong.map(({ file, line, problem, text }) => `${file}:${line}: ${problem}: ${text}`)).toEqual([]);
  });

  test("each exception is needed", () => {
    expect(EXCEPTIONS.filter((each) => !found.some((finding) => isFor(finding)(each)))).toEqual([]);
  });
});

describe("a text is found", () => {
  test.each([
    ['button.textContent = "open";', "open"],
    ['const made = make("button", "one", new Text("open"));', "open"],
    ['setText(chip, isOn ? "on now" : "off");', "on now,off"],
    ['el.setAttribute("aria-label", `Close ${name}`);', "Close {}"],
    ['setAttr(el, "title", name || "none");', "none"],
    ['const LABELS = { thought: "Thoughts" };', "Thoughts"],
    ['showDialog({ title: "sure?" });', "sure?"],
    ['Notification.info("done");', "done"],
    ['throw new Refused("too long");', "too long"],
    ['const say = () => `${trans.__("Waits")} for you`;', "{} for you"],
    ['const say = () => trans.__(isOn ? "Stop" : "Start");', 'isOn ? "Stop" : "Start"'],
    ['const TITLE = trans.__("Go back");', "Go back"],
  ])("in %s", (source, texts) => {
    expect(findTexts("a.ts", source).map(({ text }) => text).join()).toBe(texts);
  });

  test.each([
    'const row = make("tr", isOn ? "row open" : "row");',
    'setClass(chip, `chip ${tone}`);',
    'el.setAttribute("role", "group");',
    'if (event.key === "Enter") press();',
    'console.debug("nb_agents: the stream broke off.", error);',
    'const tones = { "timed out": tone };',
    'const close = () => trans._n("%1 row", "%1 rows", count);',
  ])("but not in %s", (source) => {
    expect(findTexts("a.ts", source)).toEqual([]);
  });
});
