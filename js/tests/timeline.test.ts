import { beforeEach, expect, test, vi } from "vitest";
import { makeTimeline } from "../src/timeline";
import { RUNNING, visibleText } from "./mock";

const points = (...names: string[]): string =>
  `<svg role="img">${names.map((name) => `<rect data-point="${name}"><title>${name}</title></rect>`).join("")}</svg>`;

let run = 0;
let now = 0;

/** A timeline of a live turn with these successive pictures. */
function timeline(...pictures: string[]) {
  const read = vi.fn((): Promise<string> => Promise.resolve(pictures[Math.min(read.mock.calls.length, pictures.length) - 1] ?? ""));
  const state = { ...RUNNING, run: `run-${++run}` };
  const { el, draw, close } = makeTimeline(new AbortController().signal, read);
  document.body.append(el);
  draw(state);
  return {
    el,
    close,
    read,
    state,
    button: el.querySelector("button") as HTMLElement,
    shown: () => [...el.querySelectorAll("rect")].map((point) => point.getAttribute("data-point")),
    /** Redraw the panel after this time. */
    async pass(ms: number) {
      now += ms;
      draw(state);
      await vi.waitFor(() => {});
    },
  };
}

beforeEach(() => {
  document.body.replaceChildren();
  vi.spyOn(performance, "now").mockImplementation(() => now);
});

test("a closed timeline is a line, and requests nothing", async () => {
  const { el, pass, read, button } = timeline(points("1:9"));
  await pass(60_000);
  expect(visibleText(el).trim()).toBe("Timeline");
  expect(button.getAttribute("aria-expanded")).toBe("false");
  expect(read).not.toHaveBeenCalled();
});

test("an open timeline is requested at most once a second, and not after it is closed", async () => {
  const { pass, read, button, shown } = timeline(points("1:9"), points("1:9", "1:12"));
  button.click();
  await pass(0);
  expect(shown()).toEqual(["1:9"]);
  await pass(600);
  expect(read).toHaveBeenCalledTimes(1);
  await pass(600);
  expect(shown()).toEqual(["1:9", "1:12"]);
  button.click();
  await pass(5000);
  expect(read).toHaveBeenCalledTimes(2);
});

test("it stays open in a recreated panel until the turn ends", async () => {
  const { button, state, close } = timeline(points("1:9"));
  button.click();
  const again = (): string | null => {
    const { el, draw } = makeTimeline(new AbortController().signal, () => Promise.resolve(""));
    draw(state);
    return el.querySelector("button")?.getAttribute("aria-expanded") ?? null;
  };
  expect(again()).toBe("true");
  close();
  expect(again()).toBe("false");
});

test("a focused checkpoint keeps the focus in a new picture, or the next one gets it", async () => {
  const { el, pass, button } = timeline(points("1:9", "1:12"), points("1:12", "1:9", "1:30"), points("1:20", "1:30"));
  button.click();
  await pass(0);
  const focused = (): string | undefined => document.activeElement?.getAttribute("data-point") ?? undefined;
  (el.querySelector("[tabindex='0']") as unknown as HTMLElement).focus();
  expect(focused()).toBe("1:12");
  await pass(1000);
  expect(focused()).toBe("1:12");
  await pass(1000);
  expect(focused()).toBe("1:20");
});

test("a picture with a checkpoint under the pointer is not redrawn", async () => {
  const { el, pass, button, shown } = timeline(points("1:9"), points("1:9", "1:12"));
  button.click();
  await pass(0);
  const picture = el.querySelector(".picture") as HTMLElement;
  const look = vi.spyOn(picture, "querySelector").mockReturnValue(picture);
  await pass(1000);
  expect(shown()).toEqual(["1:9"]);
  look.mockRestore();
  await pass(1000);
  expect(shown()).toEqual(["1:9", "1:12"]);
});

test("there is no timeline if its checkpoints could not be used", () => {
  const { el, draw } = makeTimeline(new AbortController().signal, undefined);
  draw(RUNNING);
  expect(el.hidden).toBe(true);
});

test("errors and an empty timeline are shown", async () => {
  const { el, pass, button, read } = timeline("");
  button.click();
  await pass(0);
  expect(visibleText(el)).toContain("Nothing has happened yet.");
  read.mockRejectedValue(new Error("The Jupyter server can't be reached."));
  await pass(1000);
  expect(visibleText(el)).toContain("The timeline can't be read: The Jupyter server can't be reached.");
});
