import { Widget } from "@lumino/widgets";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RunRenderer, type Surroundings, WIDGET_MIME } from "../src/renderer";
import { type Bundle, type Listener, TURN_MIME } from "../src/watch";
import { RUNNING, SWEEP, sweepRow } from "./mock";

vi.mock("@jupyterlab/services", () => ({}));
vi.mock("@jupyterlab/rendermime", () => ({
  MimeModel: class {
    constructor(readonly options: object) {
      Object.assign(this, options);
    }
  },
}));

beforeEach(() => {
  vi.useFakeTimers();
  document.body.replaceChildren();
});
afterEach(() => vi.useRealTimers());

interface Model {
  readonly data: Bundle;
  readonly trusted: boolean;
}

/** A renderer of one mime type, like JupyterLab's. */
class Plain extends Widget {
  constructor(private readonly draw: (node: HTMLElement, data: Bundle) => void) {
    super();
  }
  renderModel({ data }: Model): Promise<void> {
    this.draw(this.node, data);
    return Promise.resolve();
  }
}

const html = (): Plain => new Plain((node, data) => (node.innerHTML = String(data["text/html"])));
const widgets = (): Plain => new Plain((node) => (node.innerHTML = '<div class="nba"><button>Stop</button></div>'));

const live = (says: string, more: Bundle = { [WIDGET_MIME]: { model_id: "m" } }): Bundle => ({
  "text/html": says,
  [TURN_MIME]: { path: "s/turn_1", state: "running" },
  ...more,
});
const over = (says: string): Bundle => ({ "text/html": says, [TURN_MIME]: { path: "s/turn_1", state: "stopped" } });

const PICTURE = `<svg role="img"><rect data-point="1:9"></rect><svg data-point="2:14"><text>1</text></svg></svg>`;

/** A renderer in a page. `tell` simulates the server, and `refresh` the kernel. */
function make(hasKernel = true) {
  const listeners: Listener[] = [];
  const widgetsOf = vi.fn(() => Promise.resolve(hasKernel ? { createRenderer: widgets } : undefined));
  const app = {
    rendermime: { getFactory: () => ({ createRenderer: html }) },
    watcher: { watch: (_id: string, listener: Listener) => (listeners.push(listener), () => {}) },
    api: { timeline: vi.fn().mockResolvedValue(PICTURE) },
    files: { address: (turn: string, path: string) => `/files/${turn}/${path}`, open: vi.fn(), browse: vi.fn() },
    localPath: (path: string) => path,
    shown: new Set(),
    kernelOf: () => (hasKernel ? {} : undefined),
    widgetsOf,
    resume: vi.fn(),
    rewind: vi.fn(),
    continue_: vi.fn(),
    addCell: vi.fn(),
    code: { insert: vi.fn(), replace: vi.fn(), target: vi.fn(() => "") },
    left: vi.fn(),
    runAgain: vi.fn(),
    open: vi.fn(),
    followResumes: vi.fn(),
  };
  const renderer = new RunRenderer(app as unknown as Surroundings, {} as never);
  Widget.attach(renderer, document.body);
  const settle = (ms = 0): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
  return {
    app,
    renderer,
    widgetsOf,
    settle,
    async refresh(data: Bundle, trusted = true) {
      await renderer.renderModel({ data, trusted, metadata: {}, setData: vi.fn() } as never);
      await settle();
    },
    async tell(news: Parameters<Listener>[0]) {
      listeners.at(-1)?.(news);
      await settle();
    },
    find: (selector: string) => renderer.node.querySelector(selector),
    text: () => renderer.node.textContent,
  };
}

test.each(["absent", "unknown"] as const)("a turn that is %s for the server has its kernel's widget", async (kind) => {
  const { find, refresh, tell, text } = make();
  await refresh(live("one answer"));
  await tell({ kind });
  expect(find(".nba-widget .nba button")?.textContent).toBe("Stop");
  const drawn = find(".nba-widget .nba");
  await refresh(live("two answers"));
  expect(find(".nba-widget .nba")).toBe(drawn); // typed text stays
  await refresh(over("the card"));
  expect(find(".nba-widget")).toBeNull();
  expect(text()).toBe("the card");
});

test("each update of the HTML is drawn without server and kernel", async () => {
  const { find, refresh, tell, text } = make(false);
  await refresh(live("one answer"));
  await tell({ kind: "absent" });
  expect(text()).toBe("one answer");
  await refresh(live("two answers"));
  expect(text()).toBe("two answers");
  expect(find(".nba-widget")).toBeNull();
});

test("opened parts of a card stay open while the server has no news", async () => {
  const { find, refresh, settle, tell } = make(false);
  await refresh(over("<details><summary>What happened</summary></details>"), false);
  const opened = find("details");
  await settle(1000);
  await tell({ kind: "unknown" });
  expect(find("details")).toBe(opened);
});

test("opened parts of a card are open in its replacement", async () => {
  const { refresh, renderer, tell } = make(false);
  const parts = (more: string) =>
    over(`<details><summary>Files</summary></details><details open><summary>ada</summary></details>${more}`);
  await refresh(parts(""), false);
  const [files, ada] = renderer.node.querySelectorAll("details");
  files!.open = true;
  ada!.open = false;
  await tell({ kind: "card", bundle: parts("<details><summary>New</summary></details>") });
  const after = [...renderer.node.querySelectorAll("details")];
  expect(after.map((part) => part.open)).toEqual([true, false, false]);
  expect(after[0]).not.toBe(files);
});

test.each([
  ["a bundle without one", live("so far", {}), true],
  ["a notebook that is not trusted", live("so far"), false],
  ["a turn that is over", over("so far"), false],
])("%s gets no widget", async (_case, bundle, trusted) => {
  const { refresh, tell, text, widgetsOf } = make();
  await refresh(bundle, trusted);
  await tell({ kind: "absent" });
  expect(text()).toBe("so far");
  expect(widgetsOf).not.toHaveBeenCalled();
});

test("the answer of a slow server replaces the first drawing", async () => {
  const { find, refresh, settle, tell, text } = make();
  await refresh(live("so far"));
  expect(text()).toBe("");
  await settle(1000);
  expect(text()).toBe("so far");
  await settle(4000);
  expect(find(".nba-widget .nba")).not.toBeNull();
  await tell({ kind: "state", state: RUNNING });
  expect(find(".nba-widget")).toBeNull();
  expect(find(".nba header .chip")?.textContent).toBe("running");
  await refresh(live("two answers"));
  expect(text()).not.toContain("two answers");
});

test("a focus in the widget stays while the HTML is redrawn, and moves to the card at the end", async () => {
  const { find, refresh, tell } = make();
  await refresh(live("one answer"));
  await tell({ kind: "absent" });
  const button = find(".nba-widget button") as HTMLElement;
  button.focus();
  await refresh(live("two answers"));
  expect(document.activeElement).toBe(button);
  await refresh(over("the card"));
  expect(document.activeElement?.textContent).toBe("the card");
});

const BUTTONS = `<button data-commandlinker-command="x" value="resume">Resume</button>
  <button data-commandlinker-command="x" value="continue"><b>Continue…</b></button>`;

test.each([true, false])("a card's buttons use JupyterLab with a kernel (%s), else the server", async (hasKernel) => {
  const { app, find, refresh } = make(hasKernel);
  const linked = vi.fn();
  document.body.addEventListener("click", linked, { once: true });
  await refresh(over(BUTTONS));
  (find("button") as HTMLElement).click();
  (find("b") as HTMLElement).click();
  expect(linked).toHaveBeenCalledTimes(hasKernel ? 1 : 0);
  const asked = hasKernel ? [] : [["s/turn_1"]];
  expect(app.resume.mock.calls).toEqual(asked);
  expect(app.continue_.mock.calls).toEqual(asked);
});

test("the buttons of a sweep's row act on that row without a kernel", async () => {
  const { app, find, refresh, tell } = make(false);
  await refresh(live("a sweep"));
  await tell({ kind: "state", state: { ...SWEEP, rows: [sweepRow("sky", { run: "sky/1" })] } });
  (find(".rows button.open") as HTMLElement).click();
  await tell({ kind: "card", bundle: over(BUTTONS) });
  (find(".opened .card button") as HTMLElement).click();
  expect(app.resume.mock.calls).toEqual([["s/turn_1/sky/turn_1"]]);
});

test("a widget's buttons use JupyterLab after the end of its kernel, as the server does not know the run", async () => {
  const { app, find, refresh, tell } = make();
  await refresh(live("one answer"));
  await tell({ kind: "unknown" });
  (find(".nba-widget .nba") as HTMLElement).innerHTML = BUTTONS;
  app.kernelOf = () => undefined;
  (find(".nba-widget .nba button") as HTMLElement).click();
  expect(app.resume).not.toHaveBeenCalled();
});

const button = (args: string): string => {
  const linked = `data-commandlinker-command="apputils:run-all-enabled" data-commandlinker-args='${args}'`;
  return `<button ${linked} value="resume">Resume</button>`;
};
const RESUME = button('{"commands": ["notebook:run-cell"], "args": {"text": "%agents resume s"}}');

/** Press the button of a card. Returns whether JupyterLab's listener receives the event. */
async function pressResume(page: ReturnType<typeof make>, card: string, trusted: boolean): Promise<boolean> {
  await page.refresh(over(card), trusted);
  if (!trusted) await page.settle(500);
  const heard = vi.fn();
  document.body.addEventListener("click", heard, { once: true });
  page.find("button")?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  document.body.removeEventListener("click", heard);
  return heard.mock.calls.length > 0;
}

test("in an untrusted notebook, a card's button adds its cell and runs nothing", async () => {
  const page = make();
  expect(await pressResume(page, RESUME, false)).toBe(false);
  expect(page.app.addCell).toHaveBeenCalledExactlyOnceWith("%agents resume s");
  expect(page.app.resume).not.toHaveBeenCalled();
});

test.each(["", "null", "{", '{"args": 1}'])("a button with invalid arguments %s runs nothing", async (args) => {
  expect(await pressResume(make(), button(args), false)).toBe(false);
});

test("in a trusted notebook, JupyterLab adds and runs the cell of a card's button", async () => {
  const page = make();
  expect(await pressResume(page, RESUME, true)).toBe(true);
  expect(page.app.addCell).not.toHaveBeenCalled();
});

test("without a kernel, the server resumes a card's turn", async () => {
  const page = make(false);
  expect(await pressResume(page, RESUME, false)).toBe(false);
  expect(page.app.resume).toHaveBeenCalledExactlyOnceWith("s/turn_1");
});

test("a live turn has a timeline instead of a button, and a card has both", async () => {
  const { find, refresh, tell } = make();
  await refresh(live("so far"));
  await tell({ kind: "state", state: RUNNING });
  expect(find(".nba-back")).toBeNull();
  expect(find(".timeline button")?.textContent).toBe("Timeline");
  await tell({ kind: "card", bundle: over(PICTURE) });
  expect(find(".nba-back")?.textContent).toBe("Go back…");
});

test("an old card has the button, unless the server does not know its turn", async () => {
  const { find, refresh, settle, tell } = make(false);
  await refresh(over("the card"));
  expect(find(".nba-back")).not.toBeNull();
  await refresh(over("a stranger's card"), false);
  await settle(500);
  await tell({ kind: "unknown" });
  expect(find(".nba-back")).toBeNull();
});

test.each(["a live turn's timeline", "a card"])("a checkpoint of %s can be chosen by click and by keyboard", async (where) => {
  const { app, find, refresh, settle, tell } = make();
  await refresh(live("so far"));
  await tell({ kind: "state", state: RUNNING });
  if (where === "a card") await tell({ kind: "card", bundle: over(PICTURE) });
  else (find(".timeline button") as HTMLElement).click();
  await settle();
  find("text")?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  expect(app.rewind.mock.calls).toEqual([["s/turn_2", 14]]);
  const press = (key: string): unknown => document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  (find("[data-point][tabindex='0']") as HTMLElement).focus();
  expect(document.activeElement?.getAttribute("data-point")).toBe("2:14");
  press("ArrowLeft");
  press("ArrowLeft");
  press("Enter");
  expect(app.rewind.mock.lastCall).toEqual(["s/turn_1", 9]);
  press("End");
  press(" ");
  expect(app.rewind.mock.lastCall).toEqual(["s/turn_2", 14]);
});

test("a checkpoint of an open row rewinds that row's turn", async () => {
  const { app, find, refresh, tell } = make(false);
  await refresh(live("a sweep"));
  await tell({ kind: "state", state: { ...SWEEP, rows: [sweepRow("sky", { run: "sky/1" })] } });
  (find(".rows button.open") as HTMLElement).click();
  await tell({ kind: "card", bundle: over(PICTURE) });
  find("rect")?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  expect(app.rewind.mock.calls).toEqual([["s/turn_1/sky/turn_1", 9]]);
});

test("the card of a turn that was resumed elsewhere names and opens the later turn", async () => {
  const { renderer, app } = make();
  await renderer.renderModel({ data: over("old card"), trusted: true } as never);
  const [id, , told] = app.followResumes.mock.calls[0] as [string, AbortSignal, (turn: number, state: string) => void];
  expect(id).toBe("s/turn_1");
  expect(renderer.node.querySelector(".nba-strip")).toBeNull();
  told(2, "running");
  told(2, "complete");
  expect(renderer.node.querySelectorAll(".nba-strip")).toHaveLength(1);
  expect(renderer.node.querySelector(".nba-strip")?.textContent).toContain("Resumed in turn 2: complete.");
  expect(renderer.node.classList.contains("resumed")).toBe(true);
  [...renderer.node.querySelectorAll<HTMLElement>(".nba-strip button")].find((b) => !b.hidden)?.click();
  expect(app.open).toHaveBeenCalledWith("s/turn_2");
});

test("resumes of complete turns are not followed", async () => {
  const { renderer, app } = make();
  const complete = { ...over("card"), [TURN_MIME]: { path: "s/turn_1", state: "complete" } };
  await renderer.renderModel({ data: complete, trusted: true } as never);
  expect(app.followResumes).not.toHaveBeenCalled();
});

test("the button for a rewind is in the card's footer, and a click on it opens no files", async () => {
  const { renderer, app, find } = make();
  const footer = `<div class="nb-card"><div>s · turn 1 <span class="nb-path">here/s/turn_1</span></div></div>`;
  await renderer.renderModel({ data: over(footer), trusted: true } as never);
  expect(find(".nb-card > div > .nba-back")?.textContent).toBe("Go back…");
  (find(".nba-back") as HTMLElement).click();
  expect(app.rewind).toHaveBeenCalledWith("s/turn_1");
  expect(app.files.browse).not.toHaveBeenCalled();
});
