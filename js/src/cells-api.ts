/** What the page and the server exchange about cells. */

import type { Answer } from "./api";
import type { Change, RevertStep } from "./cell-changes";
import type { WantedRun, RunPart } from "./cell-runs";

/** What a turn's state says about cells, as in `nb_agents/extensions/notebook_cells/cell_views.py`. */
export interface CellsPart {
  readonly requests: readonly CellsRequest[];
  readonly open: readonly number[];
  /** Whether the changes after the checkpoint of a rewind are still to be taken back. */
  readonly revert?: boolean;
  /** The open requests to run a cell. */
  readonly runs?: readonly RunPart[];
}

export interface CellsRequest {
  readonly request: number;
  readonly ids: readonly string[];
  readonly outputs?: boolean;
  /** Whether the user has allowed to read a notebook that is not trusted. */
  readonly untrusted?: boolean;
  /** Whether the agent also gets the images in the outputs. */
  readonly images?: boolean;
  /** For an outline, the number of cells to skip. */
  readonly start?: number;
}

/** How a page takes back changes, or who does. */
export interface RevertPlan {
  readonly open: boolean;
  readonly mine: boolean;
  readonly steps?: readonly RevertStep[];
  readonly kept?: readonly { readonly cell: string; readonly agent: string; readonly why: string; readonly diff: string }[];
  readonly done?: readonly string[];
}

/** Whether a proposal is still open, and whether this page may decide it. */
export interface Claim {
  readonly open: boolean;
  readonly mine: boolean;
}

export interface CellsApi {
  /** Claim a proposal before it is decided. Of several pages, one gets it. */
  claim(turn: string, body: object): Promise<Claim>;
  /** List the proposals of a turn. Accepted ones have texts only if they are newer than `since`. */
  proposals(turn: string, since?: number): Promise<readonly Change[]>;
  /** Ask how to take back the changes of a rewind. One page gets the plan. */
  revertPlan(turn: string, body: object): Promise<RevertPlan>;
  /** List a turn's open requests to run a cell. */
  cellRuns(turn: string): Promise<readonly WantedRun[]>;
  tryPost(turn: string, verb: string, body: object): Promise<Answer>;
  /** Send a verb. Resolves to whether it had an effect. */
  hasChanged(turn: string, verb: string, body: object): Promise<boolean>;
}

/** Return what a turn's state says about cells. Undefined if its agents have not used the notebook. */
export function cellsPart(parts: unknown): CellsPart | undefined {
  const part = (parts as { readonly cells?: Partial<CellsPart> } | undefined)?.cells;
  return part && Array.isArray(part.open) && Array.isArray(part.requests) ? (part as CellsPart) : undefined;
}
