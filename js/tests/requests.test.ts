import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { makeRequests } from "../src/requests";
import { MockKernel } from "./mock";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const REFUSED = { refusal: "refused by the server", isUnknown: false };
const UNKNOWN = { refusal: "No such turn.", isUnknown: true };

/** Request functions of a turn with a kernel that sends this reply, or none. */
function requests(reply?: object, answer = REFUSED) {
  const kernel = new MockKernel();
  const done = reply ? Promise.resolve({ content: reply }) : new Promise(() => {});
  kernel.sendControlMessage.mockReturnValue({ done });
  const tryPost = vi.fn().mockResolvedValue(answer);
  const report = vi.fn();
  const target = () => ({ turn: "sub/s/turn_1", run: "s/1", kernel });
  const sent = () => kernel.sendControlMessage.mock.calls.map(([message]) => (message as { content: object }).content);
  return { made: makeRequests(target, { tryPost, timeline: vi.fn(), transcript: vi.fn() }, report), tryPost, report, sent };
}

const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(1600);

test("a stop goes only to the kernel if it runs the turn", async () => {
  const { made, tryPost, sent, report } = requests({ refusal: "" });
  made.stopAgent("ada", true);
  expect(sent()).toEqual([{ run: "s/1", immediate: true, agent: "ada" }]);
  await settle();
  expect(tryPost).not.toHaveBeenCalled();
  expect(report).toHaveBeenCalledWith("");
});

test.each([[undefined], [{ refusal: "No run named 's/1'.", is_unknown: true }]])("a stop that the kernel can't handle goes to the server", async (reply) => {
  const { made, tryPost, report } = requests(reply);
  made.stopAgent("ada", true);
  await settle();
  expect(tryPost).toHaveBeenCalledWith("sub/s/turn_1", "stop", { immediate: true, agent: "ada", source: "widget" });
  expect(report).toHaveBeenCalledWith("refused by the server");
});

test("a message goes only to the server, so it is sent once", async () => {
  const { made, tryPost, sent, report } = requests({ refusal: "" });
  made.say("shorter");
  await settle();
  expect(tryPost.mock.calls).toEqual([["sub/s/turn_1", "say", { text: "shorter" }]]);
  expect(sent()).toEqual([]);
  expect(report).toHaveBeenCalledWith("refused by the server");
});

test("a message goes to the kernel if the server does not know the turn", async () => {
  const { made, sent, report } = requests({ refusal: "" }, UNKNOWN);
  made.say("shorter");
  await settle();
  expect(sent()).toEqual([{ run: "s/1", text: "shorter", id: expect.any(String) as string }]);
  expect(report).toHaveBeenCalledWith("");
});

test("a decision names its gate, and the kernel's error is reported", async () => {
  const { made, sent, report } = requests({ refusal: "Run r1 waits at no gate." }, UNKNOWN);
  made.decide("deploy", false, "not on Friday");
  await settle();
  expect(sent()).toEqual([{ run: "s/1", gate: "deploy", message: "not on Friday", id: expect.any(String) as string }]);
  expect(report).toHaveBeenCalledWith("Run r1 waits at no gate.");
});

test.each([[undefined], [{ refusal: "No run named 's/1'.", is_unknown: true }]])("the server's error is shown if neither knows the turn", async (reply) => {
  const { made, report } = requests(reply, UNKNOWN);
  made.decide("deploy", true, "");
  await settle();
  expect(report).toHaveBeenCalledWith("No such turn.");
});
