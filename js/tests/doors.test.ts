import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { makeDoors } from "../src/doors";
import { MockKernel } from "./mock";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

/** Doors of a turn whose kernel replies so, or not at all. */
function doors(reply?: object) {
  const kernel = new MockKernel();
  const done = reply ? Promise.resolve({ content: reply }) : new Promise(() => {});
  kernel.sendControlMessage.mockReturnValue({ done });
  const post = vi.fn().mockResolvedValue("refused by the server");
  const report = vi.fn();
  const target = () => ({ turn: "sub/s/turn_1", run: "s/1", kernel });
  const sent = () => kernel.sendControlMessage.mock.calls.map(([message]) => (message as { content: object }).content);
  return { made: makeDoors(target, { post, timeline: vi.fn(), transcript: vi.fn() }, report), kernel, post, report, sent };
}

const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(1600);

test("a stop goes to the kernel alone when that runs the turn", async () => {
  const { made, post, sent, report } = doors({ refusal: "" });
  made.stopAgent("ada", true);
  expect(sent()).toEqual([{ run: "s/1", immediate: true, agent: "ada" }]);
  await settle();
  expect(post).not.toHaveBeenCalled();
  expect(report).toHaveBeenCalledWith("");
});

test.each([[undefined], [{ refusal: "No run named 's/1'.", is_unknown: true }]])("a stop that the kernel can't do goes to the server", async (reply) => {
  const { made, post, report } = doors(reply);
  made.stopAgent("ada", true);
  await settle();
  expect(post).toHaveBeenCalledWith("sub/s/turn_1", "stop", { immediate: true, agent: "ada", source: "widget" });
  expect(report).toHaveBeenCalledWith("refused by the server");
});

test("a text goes to the kernel alone when that takes it", async () => {
  const { made, post, sent, report } = doors({ refusal: "" });
  made.say("shorter");
  await settle();
  expect(sent()).toEqual([{ run: "s/1", text: "shorter", id: expect.any(String) as string }]);
  expect(post).not.toHaveBeenCalled();
  expect(report).toHaveBeenCalledWith("");
});

test("a text goes to the server when the kernel knows no such run", async () => {
  const { made, post } = doors({ refusal: "No run named 's/1'. None was started here.", is_unknown: true });
  made.say("shorter");
  await settle();
  expect(post).toHaveBeenCalledWith("sub/s/turn_1", "say", { text: "shorter" });
});

test("a decision names its gate, and what the kernel refuses is told", async () => {
  const { made, post, report } = doors({ refusal: "Run r1 waits at no gate." });
  made.decide("deploy", false, "not on Friday");
  await settle();
  expect(post).not.toHaveBeenCalled();
  expect(report).toHaveBeenCalledWith("Run r1 waits at no gate.");
});

test("without a reply a decision goes to the server", async () => {
  const { made, post } = doors();
  made.decide("deploy", false, "not on Friday");
  await settle();
  expect(post).toHaveBeenCalledWith("sub/s/turn_1", "deny", { gate: "deploy", message: "not on Friday" });
});
