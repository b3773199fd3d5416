/**
 * The panel of a sweep, updated through the server. An open row is followed like any turn. Requests for
 * rows go only to the server, because a kernel may have rows of two sweeps with the same name.
 */

import type { Api } from "./api";
import { type Report, makeRequests, makeSweepStop } from "./requests";
import type { Kernel } from "./kernel";
import type { RunRequests } from "./live";
import { readState } from "./state";
import { type SweepPanel, makeSweepPanel } from "./sweep-panel";
import type { PanelState, Status, SweepState } from "./panel-types";
import { type News, type Watcher, answersOf, statusOf } from "./watch";

export interface ServerSweep {
  /** The server's id of the sweep. */
  readonly id: string;
  readonly api: Pick<Api, "post" | "tryPost" | "timeline" | "transcript">;
  readonly watcher: Pick<Watcher, "watch">;
  kernel(): Kernel | undefined;
  /** Called with an error message, or "". */
  readonly report: Report;
}

/** The open row. */
interface Opened {
  readonly row: string;
  readonly title: string;
  /** The server's id of its turn. */
  readonly turn: string;
  state: PanelState | null;
  /** Ends its stream. */
  end(): void;
}

export function makeServerSweep(
  life: AbortSignal,
  { id, api, watcher, kernel, report }: ServerSweep,
): SweepPanel & { opened(): string } {
  let state: SweepState | null = null;
  let opened: Opened | null = null;
  const requestsOf = (turn: string): RunRequests => makeRequests(() => ({ turn, run: "", kernel: undefined }), api, report);
  const redraw = (): void => {
    if (state && !life.aborted) panel.draw(withOpened(state, opened));
  };
  const close = (): void => {
    opened?.end();
    opened = null;
  };
  const open = (row: string): void => {
    close();
    const found = state?.rows.find((each) => each.id === row);
    if (found?.run) {
      const turn = turnOf(id, found.run);
      const taken: Opened = { row, title: found.name ?? row, turn, state: null, end: watcher.watch(turn, (news) => take(taken, news)) };
      opened = taken;
    }
    redraw();
  };
  const take = (row: Opened, news: News): void => {
    if (opened !== row) return;
    if (news.kind === "state") row.state = readState(news.state);
    else if (news.kind === "card") row.state = ended(row, news.bundle);
    else close();
    redraw();
  };
  const panel = makeSweepPanel(life, {
    stop: makeSweepStop(() => ({ sweep: id, kernel: kernel() }), api, report),
    hold: (pause) => void api.post(id, pause ? "pause" : "unpause", {}).then(report),
    open,
    stopRow: (run, now) => requestsOf(turnOf(id, run)).stop(now),
    steer: (body) => void api.post(id, "steer", body).then(report),
    of: () => requestsOf(opened?.turn ?? ""),
  });
  life.addEventListener("abort", close);
  return {
    el: panel.el,
    opened: () => opened?.turn ?? "",
    draw(next) {
      state = next;
      redraw();
    },
  };
}

function withOpened(state: SweepState, opened: Opened | null): SweepState {
  return {
    ...state,
    rows: state.rows.map((row) => ({ ...row, current: row.id === opened?.row })),
    open: opened?.state ? { row: opened.row, title: opened.title, state: opened.state } : null,
  };
}

/** The row's last state, with its card. */
function ended({ turn, state }: Opened, bundle: Readonly<Record<string, unknown>>): PanelState {
  const status: Status = statusOf(bundle) ?? "stopped";
  const card = { card: String(bundle["text/html"] ?? ""), answers: [...answersOf(bundle)] };
  return { ...(state ?? readState({ run: turn })), status, chip: status, ...card };
}

/** Return the server's id of a row's turn, which the sweep names "row/2". */
function turnOf(sweep: string, run: string): string {
  return `${sweep}/${run.replace(/\/(?=[0-9]+$)/, "/turn_")}`;
}
