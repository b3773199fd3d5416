/** Lets one tab alone notify a person: the first that claims it, over all tabs of a server. */

/** Longer than until the last tab knows of it: the browser wakes one that is hidden once a minute. */
const HOLD_MS = 120_000;
/** A hidden tab lets those in sight, which ask each second, go first. */
const HIDDEN_WAIT_MS = 3000;

/** Resolves to whether this tab notifies. */
export type Claim = (id: string) => Promise<boolean>;

/**
 * Make the claims of this tab.
 *
 * @param server What the server's addresses begin with: others may be at the same host.
 * @param locks The browser's. It has none where the page came by plain HTTP from another host: there each tab notifies.
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
