// SPDX-License-Identifier: Apache-2.0
// Replaces modules in a tree. First look, then agree with all ranks, then change.
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <functional>
#include <set>
#include <typeinfo>

#include "core/check.h"
#include "lockstep/nn/batch_norm.h"

namespace lockstep::nn {
namespace {

using core::Problem;
using core::str;
using torch::nn::Module;

constexpr const char* kConvert = "nn.convert_sync_batch_norm";

using Made = std::shared_ptr<SyncBatchNormImpl>;

// A module's place: in its parent's registry, and once more where the parent is a container.
struct Place {
  Module* parent;
  std::string name;
};

struct Site {
  std::string path;
  std::weak_ptr<Module> module;
  std::vector<Place> places;
  std::function<Made(const World&)> make;  // empty: it is a SyncBatchNorm already
};

template <class BatchNorm>
bool is_a(const Module& module) {
  return dynamic_cast<const BatchNorm*>(&module) != nullptr;
}

bool is_batch_norm(const Module& module) {
  return is_a<torch::nn::BatchNorm1dImpl>(module) || is_a<torch::nn::BatchNorm2dImpl>(module) ||
         is_a<torch::nn::BatchNorm3dImpl>(module);
}

// Containers whose elements can be replaced hold each of them once more.
bool holds_elements(const Module& parent) {
  return is_a<torch::nn::SequentialImpl>(parent) || is_a<torch::nn::ModuleListImpl>(parent) ||
         is_a<torch::nn::ModuleDictImpl>(parent);
}

// Only the very class: what a derived one adds would be lost.
template <class BatchNorm>
void try_make(Site& site, const std::shared_ptr<Module>& module) {
  if (typeid(*module) == typeid(BatchNorm)) {
    site.make = [weak = site.module](const World& world) {
      return SyncBatchNormImpl::from(static_cast<const BatchNorm&>(*weak.lock()), world);
    };
  }
}

class Survey {
 public:
  explicit Survey(Module& root) {
    core::check(!is_batch_norm(root) && !is_a<SyncBatchNormImpl>(root), kConvert, [] {
      return Problem{.what = "the module is a BatchNorm itself, which cannot be replaced in its owner",
                     .advice = "use SyncBatchNormImpl::from or set_world, or pass the module that contains it"};
    });
    visit(root, "");
    for (const auto& site : sites_) {
      check_replaceable(site);
    }
  }

  std::vector<Site>& sites() { return sites_; }

  // What has to be the same on all ranks.
  std::string listing() const {
    std::string text;
    for (const auto& site : sites_) {
      text += str(site.path, " ", site.module.lock()->buffers(false).size(), "\n");
    }
    return text;
  }

 private:
  void visit(Module& parent, const std::string& prefix) {
    if (!visited_.insert(&parent).second) {
      return;
    }
    for (const auto& item : parent.named_children()) {
      const auto& child = item.value();
      const auto path = prefix + item.key();
      if (is_batch_norm(*child) || is_a<SyncBatchNormImpl>(*child)) {
        add(path, child, parent, item.key());
      } else {
        visit(*child, path + ".");
      }
    }
  }

  void add(const std::string& path, const std::shared_ptr<Module>& module, Module& parent, const std::string& name) {
    auto known = std::find_if(sites_.begin(), sites_.end(), [&](const Site& s) { return s.module.lock() == module; });
    if (known == sites_.end()) {
      sites_.push_back({path, module, {}, {}});
      known = sites_.end() - 1;
      try_make<torch::nn::BatchNorm1dImpl>(*known, module);
      try_make<torch::nn::BatchNorm2dImpl>(*known, module);
      try_make<torch::nn::BatchNorm3dImpl>(*known, module);
    }
    known->places.push_back({&parent, name});
  }

  static void check_replaceable(const Site& site) {
    if (is_a<SyncBatchNormImpl>(*site.module.lock())) {
      return;
    }
    core::check(static_cast<bool>(site.make), kConvert, [&] {
      return Problem{str("'", site.path, "' is of a class derived from BatchNorm, which would be lost"),
                     c10::demangle(typeid(*site.module.lock()).name()), "BatchNorm1d, 2d, 3d or SyncBatchNorm"};
    });
    long holders = 0;
    for (const auto& place : site.places) {
      holders += holds_elements(*place.parent) ? 2 : 1;
    }
    core::check(site.module.use_count() == holders, kConvert, [&] {
      return Problem{
          str("'", site.path, "' is held by a member or variable, which would go on with plain BatchNorm"),
          str(site.module.use_count(), " references"), str(holders),
          "declare the member as lockstep::nn::SyncBatchNorm or as a Sequential around it, and keep no handle"};
    });
  }

  std::vector<Site> sites_;
  std::set<const Module*> visited_;
};

void put(Module& parent, const std::string& name, const Made& made) {
  const auto index = [&] { return static_cast<std::ptrdiff_t>(std::stoll(name)); };
  if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent)) {
    const auto names = parent.named_children().keys();
    *(sequential->begin() + (std::find(names.begin(), names.end(), name) - names.begin())) = torch::nn::AnyModule(made);
  } else if (auto* list = dynamic_cast<torch::nn::ModuleListImpl*>(&parent)) {
    *(list->begin() + index()) = made;
  } else if (auto* dict = dynamic_cast<torch::nn::ModuleDictImpl*>(&parent)) {
    const auto item = std::find_if(dict->begin(), dict->end(), [&](const auto& i) { return i.key() == name; });
    item->value() = made;
  }
  parent.replace_module(name, std::static_pointer_cast<Module>(made));
}

// The first rank's error wins on all of them.
void agree(const World& world, const std::string& error, const std::string& listing) {
  const auto texts = world.all_gather_text(error.empty() ? "=" + listing : "!" + error, {"convert_sync_batch_norm"});
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank][0] == '!') {
      throw InputError(world.size() > 1 ? str("[rank ", rank, "] ", texts[rank].substr(1)) : texts[rank].substr(1));
    }
    core::check(texts[rank] == texts[0], kConvert, [&] {
      return Problem{str("rank ", rank, "'s model has other BatchNorm modules than rank 0's"), texts[rank].substr(1),
                     texts[0].substr(1), "build the same model on every rank"};
    });
  }
}

void change(Site& site, const World& group, const ConvertOptions& options) {
  auto made = site.make ? site.make(group) : std::static_pointer_cast<SyncBatchNormImpl>(site.module.lock());
  made->set_world(group, site.path);
  if (!site.make) {
    return;
  }
  made->options.skip_non_finite(options.skip_non_finite);
  for (const auto& place : site.places) {
    put(*place.parent, place.name, made);
  }
}

}  // namespace

int convert_sync_batch_norm(Module& module, const World& world, const ConvertOptions& options) {
  std::optional<Survey> survey;
  std::string error;
  try {
    survey.emplace(module);
  } catch (const InputError& problem) {
    error = problem.what();
  }
  agree(world, error, survey ? survey->listing() : "");
  auto& sites = survey->sites();
  if (sites.empty()) {
    return 0;
  }
  const auto group = world.size() > 1 ? world.split(0, world.rank()) : world;
  for (auto& site : sites) {
    change(site, group, options);
  }
  return static_cast<int>(sites.size());
}

}  // namespace lockstep::nn
