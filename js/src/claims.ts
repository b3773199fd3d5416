/** Ensures that only one tab of a server shows a notification: the first to claim it. */

/** How long a claim lasts. Browsers wake hidden tabs only once a minute. */
const HOLD_MS = 120_000;
/** Delay of a hidden tab, so that visible tabs, which poll each second, claim first. */
const HIDDEN_WAIT_MS = 3000;

/** Resolves to whether this tab notifies. */
export type Claim = (id: string) => Promise<boolean>;

/**
 * Create the function that claims notifications for this tab.
 *
 * @param server The base URL of the server, because the host may have others.
 * @param locks The browser's lock manager. Missing on plain HTTP from another host; then each tab notifies.
 */
export function makeClaims(server: string, locks: LockManager | undefined): Claim {
  const mine = new Set<string>();
  const hold = async (id: string): Promise<void> => {
    mine.add(id);
    await pause(HOLD_MS);
    mine.delete(id);
  };
  return async (id) => {
    if (!locks) return true;
    if (document.hidden) await pause(HIDDEN_WAIT_MS);
    if (mine.has(id)) return true;
    return new Promise((resolve) => {
      void locks.request(`nb-agents ${server} ${id}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock && hold(id);
      });
    });
  };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
