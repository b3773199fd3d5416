import { beforeEach, expect, test, vi } from "vitest";
import { makeTimeline } from "../src/timeline";
import { RUNNING, visibleText } from "./mock";

const points = (...names: string[]): string =>
  `<svg role="img">${names.map((name) => `<rect data-point="${name}"><title>${name}</title></rect>`).join("")}</svg>`;

let run = 0;
let now = 0;

/** A timeline of a live turn, of which the server draws these pictures one after the other. */
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
    /** The panel is drawn anew after so long. */
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

test("one that is folded is a line, and asks for nothing", async () => {
  const { el, pass, read, button } = timeline(points("1:9"));
  await pass(60_000);
  expect(visibleText(el).trim()).toBe("Timeline");
  expect(button.getAttribute("aria-expanded")).toBe("false");
  expect(read).not.toHaveBeenCalled();
});

test("one that is open is read at most once a second, and never again when it is folded", async () => {
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

test("it stays open when the front end makes the panel again, until the turn is over", async () => {
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

test("a focus on a point stays there when the picture is drawn anew, or goes to the next point", async () => {
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

test("a picture that has a point under the pointer is left alone", async () => {
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

test("where its points would lead nowhere there is none", () => {
  const { el, draw } = makeTimeline(new AbortController().signal, undefined);
  draw(RUNNING);
  expect(el.hidden).toBe(true);
});

test("why it can't be read is seen, and that nothing has happened yet", async () => {
  const { el, pass, button, read } = timeline("");
  button.click();
  await pass(0);
  expect(visibleText(el)).toContain("Nothing has happened yet.");
  read.mockRejectedValue(new Error("The Jupyter server can't be reached."));
  await pass(1000);
  expect(visibleText(el)).toContain("It can't be read: The Jupyter server can't be reached.");
});
