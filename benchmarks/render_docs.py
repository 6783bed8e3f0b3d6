"""Write the committed results into the docs, as the tables between `<!-- table NAME -->` and `<!-- end -->`.

python benchmarks/render_docs.py            # write the tables
python benchmarks/render_docs.py --check    # fail if a document and the results differ (CI runs this)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tables import (
    adapting,
    agents,
    baselines,
    challenge,
    composition,
    corrective,
    data,
    engines,
    house,
    learning,
    light,
    merge,
    mesh,
    paper,
    security,
    synergy,
    warm,
)

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
TABLES: dict[str, Callable[[], str]] = {
    "challenge-headline": challenge.challenge_headline,
    "challenge-runs": challenge.challenge_runs,
    "challenge-costs": challenge.challenge_costs,
    "challenge-sweep": challenge.challenge_sweep,
    "challenge-speedup": challenge.challenge_speedup,
    "baselines": baselines.runs,
    "baselines-headline": baselines.headline,
    "baselines-paper": baselines.beside_the_paper,
    "baselines-tasks": baselines.by_task,
    "baselines-orders": baselines.orders,
    "baselines-first-grid": baselines.first_grid,
    "baselines-first-grid-tuning": partial(baselines.tuning, "baselines-first-grid-tuning"),
    "baselines-tuning": partial(baselines.tuning, "baselines-tuning"),
    "baselines-wider": partial(baselines.tuning, "baselines-wider"),
    "data": data.tasks,
    "data-subsets": data.subsets,
    "accuracy": agents.accuracy,
    "per-task": agents.per_task,
    "transfer": agents.transfer,
    "drawn": agents.drawn,
    "unknown": agents.unknown,
    "unknown-headline": agents.unknown_headline,
    "views-xception": agents.views_xception,
    "lenience": agents.lenience,
    "seeds": agents.seeds,
    "near-misses": agents.near_misses,
    "views-halves": agents.views_halves,
    "views-tried": agents.views_tried,
    "views-tried-beside": partial(agents.views_tried, "views-tried-beside"),
    "views": agents.views,
    "xception": agents.xception,
    "speed": agents.speed,
    "speed-details": agents.speed_details,
    "ask": agents.ask,
    "engines": engines.engines,
    "engines-xception": engines.xception,
    "export-onnx": agents.export_onnx,
    "install": light.install,
    "light": light.light,
    "page": light.page,
    "light-short": light.light_short,
    "reduced": light.reduced,
    "mesh": mesh.mesh,
    "mesh-headline": mesh.mesh_headline,
    "mesh-answers": mesh.mesh_answers,
    "mesh-networks": mesh.mesh_networks,
    "quarantine": mesh.quarantine,
    "quarantine-headline": mesh.quarantine_headline,
    "hostile-client": security.hostile_client,
    "hostile-client-worst": security.hostile_client_worst,
    "hostile-images": security.hostile_images,
    "hostile-images-worst": security.hostile_images_worst,
    "campaign": security.campaign,
    "campaign-headline": security.campaign_headline,
    "mutated-files": security.mutated_files,
    "mutants": security.mutants,
    "learning-curve": learning.learning_curve,
    "learning-curve-headline": learning.learning_curve_headline,
    "near-twins": learning.near_twins,
    "twins-in-tasks": learning.twins_in_tasks,
    "biases": adapting.biases,
    "biases-headline": adapting.biases_headline,
    "biases-per-task": adapting.biases_per_task,
    "biases-xception": adapting.biases_xception,
    "biases-cost": adapting.biases_cost,
    "biases-counts": adapting.biases_counts,
    "paper-overview": paper.overview,
    "paper-verdicts": paper.verdicts,
    "paper-main": paper.main_differences,
    "paper-single": partial(paper.paper, "single"),
    "paper-parallel": partial(paper.paper, "parallel"),
    "paper-replay": partial(paper.paper, "replay"),
    "paper-sharing": partial(paper.paper, "sharing"),
    "paper-mapper": partial(paper.paper, "mapper"),
    "paper-datasets": paper.paper_datasets,
    "study-ewc-shipping": partial(paper.study, "ewc-shipping"),
    "study-replay": partial(paper.study, "replay"),
    "study-maha-macs": partial(paper.study, "maha-macs"),
    "study-macs": partial(paper.study, "macs"),
    "study-clusters": partial(paper.study, "clusters"),
    "study-images-per-class": partial(paper.study, "images-per-class"),
    "study-difficulty": partial(paper.study, "difficulty"),
    "class-pairs": synergy.paper_pairs,
    "class-matches": synergy.matches,
    "corrective": corrective.accuracy,
    "corrections": corrective.corrections,
    "support": corrective.support,
    "sight-constructed": corrective.constructed,
    "sight-wild": corrective.wild,
    "sight-costs": corrective.costs,
    "matching-short": corrective.wild_short,
    "support-short": corrective.support_short,
    "merge": merge.tasks,
    "merge-choice": merge.choice,
    "merge-short": merge.short,
    "composition": composition.without_images,
    "composition-epochs": composition.epochs,
    "composition-short": composition.short,
    "composed-beside": composition.beside,
    "warm-shots": warm.shots,
    "warm-short": warm.short,
    "warm-pairs": warm.pairs,
    "warm-epochs": warm.epochs,
    "warm-exp": warm.exp,
    "simulate": challenge.simulate,
    "simulate-headline": challenge.simulate_headline,
    "walks": house.walks,
    "dataset-memory": house.dataset_memory,
    "simulate-check": challenge.simulate_check,
}


def rendered(text: str) -> str:
    return BLOCK.sub(lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->", text)


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = document.read_text()
        if (new := rendered(text)) != text:
            stale.append(document.relative_to(ROOT))
            if not check:
                document.write_text(new)
    for document in stale:
        print(f"{document}: {'its tables are not what docs/results says; run make docs' if check else 'written'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
